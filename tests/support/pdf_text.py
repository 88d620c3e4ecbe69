"""Read the text of a PDF file, page by page."""

import pypdfium2


def texts(data):
    """Return the text of each page as a reader would copy it.

    Zero-width spaces, at which long words break, are removed. pdfium's marks for line ends become hyphens.
    """
    document = pypdfium2.PdfDocument(data)
    try:
        pages = [page.get_textpage().get_text_range() for page in document]
        return [text.replace("\u200b", "").replace("\ufffe", "-") for text in pages]
    finally:
        document.close()
