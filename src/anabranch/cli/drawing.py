"""Draws an overlay: nodes on a circle, links as lines, the slower the redder."""

import math
from typing import Any
from xml.sax.saxutils import escape

SIZE = 800
RADIUS = 300


def draw_topology(part: dict[str, Any]) -> str:
    """Return one stream part as SVG."""
    nodes = list(part["topology"])
    places = {node: _place(index, len(nodes)) for index, node in enumerate(nodes)}
    links: dict[tuple[str, str], float | None] = {}
    for node, known in part["topology"].items():
        for neighbour in known["neighbours"]:
            peer = neighbour["node"]
            if peer in places:
                pair = (min(node, peer), max(node, peer))
                links[pair] = links.get(pair) or neighbour["rtt_ms"]
    slowest = max((rtt for rtt in links.values() if rtt), default=1.0)
    title = f"{part['stream']}#{part['partition']}: {len(nodes)} nodes, {len(links)} links"
    drawn = [_line(places[a], places[b], rtt, slowest) for (a, b), rtt in sorted(links.items())]
    drawn += [_node(places[node], node) for node in nodes]
    legend = f"round trips up to {slowest:.1f} ms: blue is fast, red is slow"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" '
        'font-family="sans-serif">\n'
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>\n'
        f'<text x="20" y="30" font-size="14">{escape(title)}</text>\n'
        f'<text x="20" y="50" font-size="12" fill="#666">{escape(legend)}</text>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _place(index: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * index / max(1, count)
    centre = SIZE / 2
    return centre + RADIUS * math.sin(angle), centre + 20 - RADIUS * math.cos(angle)


def _line(
    a: tuple[float, float], b: tuple[float, float], rtt_ms: float | None, slowest: float
) -> str:
    share = min(1.0, (rtt_ms or 0.0) / slowest)
    colour = (
        "#bbbbbb" if not rtt_ms else f"rgb({int(40 + 190 * share)},80,{int(220 - 180 * share)})"
    )
    return (
        f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" '
        f'stroke="{colour}" stroke-width="1.5" stroke-opacity="0.75"/>'
    )


def _node(at: tuple[float, float], name: str) -> str:
    centre = SIZE / 2
    outward = 1.08
    x, y = centre + (at[0] - centre) * outward, centre + 20 + (at[1] - centre - 20) * outward
    anchor = "middle" if abs(at[0] - centre) < 40 else "start" if at[0] > centre else "end"
    return (
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="6" fill="#1f6f8b"/>'
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" text-anchor="{anchor}" '
        f'dominant-baseline="middle">{escape(name[:8])}</text>'
    )
