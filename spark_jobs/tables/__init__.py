"""One pure module per table: data frames in, the table's rows out; the same for stream and backfill.

``registry.py`` says what each of them is made of.
"""
