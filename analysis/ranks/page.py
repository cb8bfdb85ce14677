"""Ranks as a page: a heat map of ranks × steps above the tables; one HTML file without scripts."""

from __future__ import annotations

from dataclasses import replace
from html import escape

import numpy as np

from ..document import without_commands
from ..presenters import as_html
from ..support.text import printable
from ..support.units import share_text, time_text
from .document import ranks_document
from .reduce import Ranks

CELL_HEIGHT, LEFT, TOP = 12, 150, 36
#: The steps share this width, px, as far as a step's number fits and a cell stays one.
MAP_WIDTH, NARROWEST, WIDEST = 600, 16, 60
#: A cell is fully coloured from this share above, or below, the median of its step.
FULL_SHARE = 0.1
#: Of more ranks, those furthest from the median are drawn.
MOST_RANKS, MOST_STEPS = 512, 64
STYLE = """
:root{color-scheme:light dark;--above:#d9480f;--below:#1c7ed6;--text:#212529;--none:#f1f3f5}
@media (prefers-color-scheme:dark){:root{--above:#ff922b;--below:#4dabf7;--text:#dee2e6;--none:#2b3035}}
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:60rem;padding:0 1rem;color:var(--text)}
.scrolls{overflow-x:auto} td,th{padding:0 .5em;text-align:left} caption{text-align:left;font-weight:bold}
svg text{fill:currentColor;font-size:10px}
.above{fill:var(--above)} .below{fill:var(--below)} .none{fill:var(--none)}
"""


def ranks_page(ranks: Ranks) -> str:
    """Return the page of some ranks."""
    document = ranks_document(ranks)
    title = escape(printable(document.heading))
    head = f'<meta name=generator content="{as_html.PAGE}"><meta charset=utf-8>'
    head += f'<meta name=viewport content="width=device-width"><title>{title}</title>'
    notes = "".join(f"<p>{escape(printable(note))}</p>\n" for note in document.notes)
    tables = as_html.fragment(replace(without_commands(document), notes=()))
    body = f"<h1>Ranks by step</h1>\n{notes}{heat_map(ranks)}\n<div class=scrolls>{tables}</div>"
    return f"<!DOCTYPE html>\n<html lang=en>{head}<style>{STYLE}</style>\n{body}\n</html>\n"


def heat_map(ranks: Ranks) -> str:
    """Draw each rank's time in kernels other than collectives, by step, against the median of the step's ranks."""
    compute_ns = ranks.compute_ns[:MOST_STEPS]
    if not compute_ns.size:
        return "<p>No summary has measured steps, so there is no map of ranks and steps.</p>"
    share = compute_ns / np.nanmedian(compute_ns, axis=1, keepdims=True) - 1
    furthest = np.argsort(-np.nanmax(np.abs(share), axis=0), kind="stable")[:MOST_RANKS]
    drawn = np.sort(furthest)
    cell_width = min(max(MAP_WIDTH // len(share), NARROWEST), WIDEST)
    width, height = LEFT + cell_width * len(share), TOP + CELL_HEIGHT * len(drawn)
    parts = [f'<text x="0" y="{TOP - 6}">rank, host</text><text x="{LEFT}" y="10">step</text>']
    parts += [f'<text x="{LEFT + cell_width * step}" y="{TOP - 6}">{step}</text>' for step in range(len(share))]
    for line, place in enumerate(drawn.tolist()):
        rank, y = ranks.ranks[place], TOP + CELL_HEIGHT * line
        label = escape(printable(f"{rank.number if rank.number >= 0 else rank.name} {rank.host}".strip()))
        parts.append(f'<text x="0" y="{y + 10}">{label}</text>')
        for step, above in enumerate(share[:, place].tolist()):
            x, size = LEFT + cell_width * step, f'width="{cell_width - 1}" height="{CELL_HEIGHT - 1}"'
            parts.append(f'<rect class="none" x="{x}" y="{y}" {size}/>')
            if above == above:  # not a step that this rank lacks
                side, opacity = "above" if above > 0 else "below", min(abs(above) / FULL_SHARE, 1)
                time = time_text(compute_ns[step, place])
                tip = f"{label}, step {step}: {time}, {share_text(abs(above))} {side} the median"
                rect = f'class="{side}" fill-opacity="{opacity:.3f}" x="{x}" y="{y}" {size}'
                parts.append(f"<rect {rect}><title>{tip}</title></rect>")
    left_out = f" The {len(drawn)} ranks furthest from it are drawn." if len(drawn) < len(ranks.ranks) else ""
    caption = (
        "Time in kernels other than collectives, of each rank (row) in each step (column), against the median of "
        f"that step's ranks: orange is longer, blue shorter, full colour from {FULL_SHARE:.0%}.{left_out}"
    )
    image = f'<svg role="img" aria-label="Ranks by step" width="{width}" height="{height}">'
    return f"<p>{caption}</p>\n<div class=scrolls>{image}{''.join(parts)}</svg></div>"
