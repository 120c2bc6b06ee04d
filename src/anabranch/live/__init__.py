"""Everything that touches the world: the asyncio driver, transports, processes, the client."""
