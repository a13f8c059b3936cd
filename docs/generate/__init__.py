"""The parts of the site that are made from the code. docs/generate_tables.py writes the pages of all modules.

    sources.py     declarations and docstrings of modules that are read, and not imported
    text.py        Markdown: tables, lines, and the place of a part in its page
    stand_in.py    imports of modules that need a package which is not compiled yet
    errors.py      docs/reference/errors.md, the whole page
    names.py       the public names, their signatures and their arguments
    knobs.py       the knobs of `timerd`
    commands.py    the commands of `timerctl`
    counters.py    the counters of `timerctl stats`
    journal.py     the rows of the journal, and its files
    spark.py       the columns of Spark's source and of its reports
    sizes.py       the bytes of an arena
    versions.py    the versions of layout, protocol and journal
    wire_examples.py  the examples in bytes of PROTOCOL.md

The pages are plain Markdown, and not Sphinx's autodoc: people read them on the forge as well, and autodoc imports the
modules, of which many are compiled. Modules import from those above them in this list alone.
"""
