"""Tests of Markdown tables."""

from training.reports.tables import markdown_table


def test_columns_line_up():
    """The first column is aligned left and the others right, also in the source."""
    table = markdown_table([("", "F1"), ("names in text", "66.4"), ("ä", "7")])

    assert table == (
        "|               |   F1 |\n| ------------- | ---: |\n| names in text | 66.4 |\n| ä             |    7 |"
    )
