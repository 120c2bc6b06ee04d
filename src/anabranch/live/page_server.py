"""Where the pages of a process listen: trackers and storage nodes have some."""

from aiohttp import web

from anabranch.core.errors import LocalError
from anabranch.live.address import MAX_PORT

STOP_S = 5.0  # how long requests under way may take when it stops


class PageServer:
    """Serves an application's pages at one place."""

    def __init__(self, whose: str, host: str, port: int) -> None:
        """`whose` pages they are stands in the message if they cannot be served."""
        self._whose = whose
        self._where = (host, port)
        self._runner: web.AppRunner | None = None

    async def start(self, app: web.Application) -> str:
        """Begin to listen; return where."""
        host, port = self._where
        if not 0 <= port <= MAX_PORT:
            raise LocalError(f"there is no port {port} for the pages: they go to {MAX_PORT}")
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_S)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise LocalError(
                f"the {self._whose}'s pages cannot be served at {host}:{port} ({error.strerror}): "
                "choose another port, or 0 for any that is free"
            ) from error
        bound = self._runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{shown}:{bound[1]}"

    async def stop(self) -> None:
        """Stop listening, and let requests under way end."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
