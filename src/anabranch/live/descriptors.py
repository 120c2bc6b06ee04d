"""How many files and sockets a process may have open, and how many of them pages and links get.

Each connection takes a descriptor, and so does each file of a database. When there are none left a
process can neither accept links nor open its disk, so pages and links have shares, and some
descriptors are kept in reserve for everything else.
"""

import sys

import msgspec

from anabranch.live.transports.limits import Limits

RESERVED = 128  # databases, the event loop, dials, connections that are being refused
WANTED = 4_096  # with fewer a large network does not fit
MOST = 65_536  # asked for where the system sets no limit
PAGES_PART = 8  # pages get one descriptor in so many
LEAST_PAGES, MOST_PAGES = 16, 512
LEAST_LINKS = 16


def current_limit() -> int:
    """Return how many descriptors this process may have."""
    if sys.platform == "win32":
        return MOST
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raise the limit as far as the system allows without being asked; return what it is now."""
    if sys.platform == "win32":
        return MOST
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return current_limit()


def share_of_pages(limit: int) -> int:
    """Return how many connections the pages of a process may have."""
    return max(LEAST_PAGES, min(MOST_PAGES, (limit - RESERVED) // PAGES_PART))


def fit(limits: Limits, limit: int) -> Limits:
    """Lower the limits of a transport so that its links leave descriptors for everything else."""
    room = max(LEAST_LINKS, limit - RESERVED - share_of_pages(limit))
    refusals = min(limits.refusals, room // 16)
    pending = min(limits.pending, room // 4)
    links = min(limits.links, room - pending - refusals)
    return msgspec.structs.replace(
        limits,
        pending=pending,
        links=links,
        refusals=refusals,
        pending_per_address=min(limits.pending_per_address, pending // 4),
        links_per_address=min(limits.links_per_address, links),
    )


def warning(limit: int) -> str:
    """Return what to say about a limit that is too low; nothing, if it is not."""
    if limit >= WANTED:
        return ""
    links = fit(Limits(links=MOST), limit).links
    return (
        f"this process may have {limit} files and sockets open, so at most {links} links and "
        f"{share_of_pages(limit)} connections to its pages: allow {WANTED} or more with "
        "`ulimit -n` (or LimitNOFILE= in a systemd unit)"
    )
