"""LaTeX tables with the rules of the booktabs package.

Characters that pdfLaTeX has no glyph for are written as commands where the table below has one; names in other
scripts need XeLaTeX or LuaLaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..document import Document, Row, Table
from ..support.text import printable
from . import cell_text

ESCAPED = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#",
        "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
        ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "'": r"\textquotesingle{}",
        "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "µ": r"\textmu{}", "…": r"\dots{}", "–": "--",
        "−": "$-$", "·": r"$\cdot$", "×": r"$\times$", "→": r"$\rightarrow$", "²": r"$^2$", "≥": r"$\geq$",
        "≤": r"$\leq$",
    }
)  # fmt: skip

HYPHENS = re.compile("-(?=-)")


def present(document: Document) -> str:
    """Write each table as a float with its caption, ready to be included in a document."""
    parts = ["% \\usepackage{booktabs}", _paragraph(f"\\textbf{{{safe(document.heading)}}}")]
    parts += [_paragraph(safe(document.verdict))] if document.verdict else []
    for table in cell_text.for_people(document):
        parts += [*([_paragraph(safe(table.lead))] if table.lead else []), "\n".join(_float(table))]
    parts += [_paragraph(safe(line)) for line in document.accounting]
    parts += [_paragraph(f"Note: {safe(note)}") for note in document.notes]
    return "\n\n".join(parts) + "\n"


def safe(text: str) -> str:
    """Escape LaTeX's special characters; adjacent hyphens stay hyphens."""
    return HYPHENS.sub("-\0", printable(text)).translate(ESCAPED).replace("\0", "{}")


def _paragraph(text: str) -> str:
    return f"\\noindent {text}"


def _float(table: Table) -> Iterator[str]:
    aligned = "".join("r" if cell_text.is_number(column) else "l" for column in table.columns)
    yield from ("\\begin{table}[ht]", "\\centering", f"\\caption{{{safe(cell_text.title(table))}}}")
    yield from (f"\\begin{{tabular}}{{{aligned}}}", "\\toprule")
    yield _line([safe(heading) for heading in cell_text.headings(table)])
    yield "\\midrule"
    for row, texts in zip(table.rows, cell_text.texts(table), strict=True):
        yield _line([_cell(row, place, text) for place, text in enumerate(texts)])
    yield from ("\\bottomrule", "\\end{tabular}")
    if table.caption:
        yield f"\\par\\smallskip {{\\footnotesize {safe(table.caption)}}}"
    yield "\\end{table}"


def _line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _cell(row: Row, place: int, text: str) -> str:
    text = safe(text)
    if row.strong and text:
        text = f"\\textbf{{{text}}}"
    return "\\quad " * row.indent + text if place == 0 else text
