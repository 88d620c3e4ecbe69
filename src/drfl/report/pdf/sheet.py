"""A4 sheets in black and grey: headings, paragraphs, tables, forest plots."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import zip_longest

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, WrapMode
from fpdf.fonts import FontFace

from drfl.report.content import TableBlock
from drfl.report.pdf.content import Block, Digests, Document, Forest, Listing, Paragraph, Points, Question
from drfl.report.pdf.forest import draw_forest, fitted, height_of
from drfl.report.pdf.names import fonts, in_glyphs

MARGIN = 18.0
"""Millimetres on each side."""

TEXT, SMALL, MONO = 9.0, 7.5, 7.0
"""Points of text, of notes and cells, and of digests."""

SHORT, LONG = 48.0, 200.0
"""Millimetres that are left on a page where a section goes on that is a few sentences, and another."""

FEW, MANY = 12, 60
"""Lines of a listing in one column, and in a column of a page where there are two."""

NARROW = 3.3
"""Millimetres from line to line of a listing."""

LINE = 4.4
"""Millimetres from line to line of text."""

SPACE = 2.6
"""Between the columns of a table."""

PAGES = "\u2007\u2007"
"""Stands for the number of pages until that is known; :func:`drfl.report.formatting.clean` leaves no such spaces."""

BLACK, GREY, PALE = 0, 110, 190
"""Greys, from 0 to 255, of text, of what is beside it, and of rules."""

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
DATE = b"/CreationDate (D:19700101000000Z)"
"""What fpdf2 writes in any case; a report has no date, so that the same runs give the same bytes."""


def drawn(document: Document) -> bytes:
    """The document as a PDF file; the same document gives the same bytes."""
    sheet = Sheet(document.title, document.writer)
    sheet.front(document)
    for number, question in enumerate(document.questions, start=1):
        sheet.question(number, question)
    data = bytes(sheet.output())
    return data.replace(DATE, b" " * len(DATE))  # of the same length, as the file lists the places of its parts


class Sheet(FPDF):
    """The pages.

    Args:
        title: the document's.
        writer: what wrote it.
    """

    def __init__(self, title: str, writer: str) -> None:
        super().__init__(format="A4")
        plain, bold, mono = fonts()
        self.add_font("text", "", plain)
        self.add_font("text", "B", bold)
        self.add_font("mono", "", mono)
        self.set_creation_date(EPOCH)
        self.set_title(title)
        self.set_producer(writer)
        self.set_lang("en")
        self.set_margins(MARGIN, MARGIN)
        self.set_auto_page_break(True, MARGIN + 4)
        self.c_margin = 0
        self.foot = f"{title} · {writer}"
        self.alias_nb_pages(PAGES)

    def footer(self) -> None:
        """Title, writer and page number."""
        self.set_y(-MARGIN + 2)
        self._font(SMALL, grey=GREY)
        self.cell(self.epw - 20, LINE, fitted(self, self.foot, self.epw - 22))
        self.cell(20, LINE, f"{self.page_no()} / {PAGES}", align="R")

    def front(self, document: Document) -> None:
        """The first page: what was run, what to know, and each answer."""
        self.add_page()
        self.start_section(document.title)
        self._font(17, "B")
        self.multi_cell(0, 7.5, document.title, align="L", new_x="LMARGIN")
        self.ln(1.5)
        self.block(Paragraph(document.lead))
        for name, value in document.facts:
            self._font(TEXT, grey=GREY)
            self.cell(26, LINE, name)
            self._font(TEXT)
            self.multi_cell(0, LINE, value, align="L", new_x="LMARGIN")
        if document.notices:
            self.ln(2)
            self.block(Paragraph("To know before believing the numbers", heading=True))
            self.block(Points(document.notices))
        self.ln(3)
        for number, question in enumerate(document.questions, start=1):
            # Keep a question with the first lines of its answer.
            self._keep(22)
            self.ln(1)
            self.block(Paragraph(f"{number}  {question.asked}", heading=True))
            self.block(Paragraph(question.answer))

    def question(self, number: int, question: Question) -> None:
        """A section, on a page of its own unless there is room enough."""
        if self.will_page_break(SHORT if question.short else LONG):
            self.add_page()
        else:
            self.ln(8)
        self.start_section(question.asked)
        self._font(14, "B")
        self.multi_cell(0, 7, f"{number}  {question.asked}", align="L", new_x="LMARGIN")
        self.ln(1.5)
        top = self.y
        self.set_x(MARGIN + 4)
        self._font(TEXT + 1, "B")
        self.multi_cell(self.epw - 4, LINE + 0.6, question.answer, align="L", new_x="LMARGIN")
        self.set_line_width(1.0)
        self.set_draw_color(BLACK)
        # A bar beside the answer, unless the answer continues on the next page.
        if self.y > top:
            self.line(MARGIN + 0.7, top, MARGIN + 0.7, self.y)
        self.ln(2)
        for block in question.blocks:
            self.block(block)

    def block(self, block: Block) -> None:
        """What an answer rests on."""
        if isinstance(block, Paragraph):
            if block.heading:
                self._keep(18)
                self.ln(1.2)
            size = SMALL if block.small else TEXT
            self._font(size, "B" if block.heading else "", grey=60 if block.small else BLACK)
            self.multi_cell(0, LINE * size / TEXT, block.text, align="L", new_x="LMARGIN")
            self.ln(0.6 if block.heading else 1.6)
        elif isinstance(block, Points):
            for line in block.lines:
                self._font(TEXT)
                self._keep(2 * LINE)
                self.cell(4, LINE, "–")
                self.multi_cell(0, LINE, line, align="L", new_x="LMARGIN")
                self.ln(0.7)
            self.ln(0.9)
        elif isinstance(block, Listing):
            self._listing(block.caption, [in_glyphs(line, mono=True) for line in block.lines])
        elif isinstance(block, Digests):
            # Keep the caption with up to a dozen rows, and below, the first rows of each run together.
            self._keep(5 + 3.6 * len(block.rows[:12]))
            self._caption(block.caption)
            for whose, name, digits in block.rows:
                if whose:
                    self._keep(4 * 3.6)
                self._font(SMALL)
                self.cell(32, 3.6, fitted(self, whose, 31))
                self.cell(34, 3.6, fitted(self, name, 33))
                self._font(MONO, family="mono")
                self.multi_cell(0, 3.6, digits, align="L", new_x="LMARGIN", wrapmode=WrapMode.CHAR)
            self.ln(1.6)
        elif isinstance(block, Forest):
            self._keep(height_of(block) + 5 * LINE)  # with the text below it
            self.ln(1)
            self._caption(block.caption)
            draw_forest(self, block)
            self.ln(1)
        else:
            self._table(block)

    def _font(self, size: float, style: str = "", *, family: str = "text", grey: int = BLACK) -> None:
        self.set_font(family, style, size)  # pyright: ignore[reportArgumentType]
        self.set_text_color(grey)

    def _keep(self, height: float) -> None:
        """Go to a new page unless there is so much room."""
        if self.will_page_break(height):
            self.add_page()

    def _listing(self, caption: str, lines: Sequence[str]) -> None:
        """Lines, in two columns where they are many and short."""
        self._keep(LINE + NARROW * min(MANY, len(lines)) / 2)
        self.ln(1)
        self._caption(caption)
        self._font(MONO, family="mono")
        half = self.epw / 2
        if len(lines) <= FEW or any(self.get_string_width(line) > half - 4 for line in lines):
            for line in lines:
                self.multi_cell(0, NARROW, line or " ", align="L", new_x="LMARGIN", wrapmode=WrapMode.CHAR)
        else:
            for start in range(0, len(lines), 2 * MANY):
                # Fill the left column, then the right one, page by page.
                part = lines[start : start + 2 * MANY]
                rows = -(-len(part) // 2)
                self._keep(NARROW * rows)
                for left, right in zip_longest(part[:rows], part[rows:], fillvalue=""):
                    self.cell(half, NARROW, left)
                    self.cell(half, NARROW, right, new_x="LMARGIN", new_y="NEXT")
        self.ln(1.6)

    def _caption(self, text: str) -> None:
        self._font(SMALL + 0.5, "B")
        self.multi_cell(0, LINE, text, align="L", new_x="LMARGIN")
        self.ln(0.4)

    def _table(self, block: TableBlock) -> None:
        cells = [[cell if isinstance(cell, str) else cell.text for cell in row] for row in block.rows]
        # Keep caption, head and first rows together.
        self._keep(LINE * min(6, len(cells) + 2) + 6)
        self.ln(1)
        self._caption(block.caption)
        self._font(SMALL)
        self.set_draw_color(PALE)
        self.set_line_width(0.15)

        # Columns as wide as their texts need, with the head on one line or else broken between words.
        wide = [max((self.get_string_width(row[k]) for row in cells), default=0) for k in range(len(block.head))]
        self.set_font(style="B")
        whole = [self.get_string_width(title) for title in block.head]
        words = [max(map(self.get_string_width, title.split()), default=0) for title in block.head]
        self.set_font(style="")
        widths: list[float] = []
        for titles in (whole, words):
            widths = [max(pair) + SPACE for pair in zip(titles, wide, strict=True)]
            if sum(widths) <= self.epw:
                break
        else:
            # Narrow columns get their width. Each one leaves more room for the others, so repeat.
            left, shared = self.epw, list(range(len(widths)))
            while fits := [k for k in shared if widths[k] <= left / len(shared)]:
                left -= sum(widths[k] for k in fits)
                shared = [k for k in shared if k not in fits]
            widths = [left / len(shared) if k in shared else own for k, own in enumerate(widths)]

        aligned = ["LEFT" if k < block.words else "RIGHT" for k in range(len(block.head))]
        heading = FontFace(emphasis="BOLD", color=BLACK)
        with self.table(
            width=sum(widths), col_widths=widths, align="LEFT", text_align=aligned, line_height=3.7,  # pyright: ignore
            padding=(0.45, 1.6, 0.45, 0), borders_layout=TableBordersLayout.HORIZONTAL_LINES, headings_style=heading,
        ) as grid:  # fmt: skip
            for row in ([*block.head], *cells):
                grid.row(row)
        self.ln(2)
