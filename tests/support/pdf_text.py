"""Read the text of a PDF file, page by page."""

import pypdfium2


def texts(data):
    """The text of each page, as a reader copies it.

    It has no spaces of no width, at which long words break, and hyphens where pdfium has signs for the ends of lines.
    """
    document = pypdfium2.PdfDocument(data)
    try:
        pages = [page.get_textpage().get_text_range() for page in document]
        return [text.replace("\u200b", "").replace("\ufffe", "-") for text in pages]
    finally:
        document.close()
