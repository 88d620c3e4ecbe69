"""Draw the picture of the decision guide: its questions in order, and the answer to each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "docs" / "choose.svg"

WIDTH, QUESTION, ROW, BOX, TOP = 780, 330, 58, 44, 14
"""Widths of the picture and of a question, heights of a row and of a box, and the margin."""

STYLE = """
  svg { color-scheme: light dark; font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
  .ground { fill: #ffffff; }
  .question { fill: #e6edfa; stroke: #5277b8; }
  .answer { fill: #e9f3e6; stroke: #5f9a52; }
  .text { font-size: 13.5px; fill: #16181d; }
  .label { font-size: 12px; fill: #454a54; }
  .arrow { fill: none; stroke: #7a808c; stroke-width: 1.4; }
  .head { fill: #7a808c; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1b1e24; }
    .question { fill: #1f2c44; stroke: #7d9fdb; }
    .answer { fill: #233420; stroke: #7fb873; }
    .text { fill: #f2f3f5; }
    .label { fill: #c3c8d1; }
    .arrow { stroke: #949ba8; }
    .head { fill: #949ba8; }
  }
"""


class Question(NamedTuple):
    """A row of the picture, and a section of the page.

    Args:
        text: The question, which is also the heading.
        answer: What to do if the answer is yes, in two lines.
        choice: Whether the reader is done after a yes; otherwise the next question follows in any case.
    """

    text: str
    answer: tuple[str, str]
    choice: bool = False


QUESTIONS = (
    Question("Do you just want a good model?", ("drfl fit", "chooses among six candidates"), True),
    Question("Are you unsure whether federation helps?", ("baselines: LocalOnly, Pooled", "and FineTuned")),
    Question("Is one class rare at some clients?", ("score: auc or", "balanced_accuracy")),
    Question("Does only the average client matter?", ("SCAFFOLD or FedDyn", "drift correction without λ"), True),
    Question("Are the labels of some clients noisy?", ("dual DRDM with reference = own,", "or FedAvg")),
    Question("Do the clients contradict each other?", ("dual DRDM; then", "drfl fit --personalise")),
    Question("Do some clients have few rows?", ("weight decay 0.01, or", "a smaller set: cvar, chi-square")),
    Question("Could a client be malicious?", ("set cvar or box, and an aggregator;", "guard probe with known rows")),
    Question("Do many clients drop out?", ("DRDM, dual DRDM or SCAFFOLD,", "not SCAFF-PD or DRFA")),
    Question("Do you have to defend the result?", ("intervals, five seeds,", "a duality gap certificate")),
)


def picture() -> str:
    """Return the SVG."""
    height = 2 * TOP + ROW * len(QUESTIONS) - (ROW - BOX)
    left, right = 16, WIDTH - 16 - QUESTION
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Ten questions that lead to an algorithm, a set, a guard and a metric</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for k, question in enumerate(QUESTIONS):
        y = TOP + ROW * k
        middle = y + BOX / 2
        for kind, x in (("question", left), ("answer", right)):
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{QUESTION}" height="{BOX}" rx="6"/>')
        parts.append(
            f'<text class="text" x="{left + 12}" y="{middle + 5:g}">{escape(f"{k + 1}. {question.text}")}</text>'
        )
        for line, text in enumerate(question.answer):
            parts.append(f'<text class="text" x="{right + 12}" y="{middle - 4 + 17 * line:g}">{escape(text)}</text>')
        start, end = left + QUESTION, right - 2
        parts.append(f'<path class="arrow" marker-end="url(#tip)" d="M{start},{middle:g} H{end}"/>')
        parts.append(f'<text class="label" x="{(start + end) / 2 - 12:g}" y="{middle - 6:g}">yes</text>')
        if k + 1 < len(QUESTIONS):
            x = left + QUESTION / 2
            parts.append(f'<path class="arrow" marker-end="url(#tip)" d="M{x:g},{y + BOX} V{y + ROW - 2}"/>')
            label = "no" if question.choice else "in any case"
            parts.append(f'<text class="label" x="{x + 8:g}" y="{y + BOX + 11}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])
