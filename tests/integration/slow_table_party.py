"""A party whose disk is slow: the product's own service, which takes a minute to read a table through."""

import time

import parley.services.party.tables as tables
import parley.tables.loading as loading
from parley.services.party.__main__ import main
from parley.services.wire.process import run

SECONDS = 60.0
_load = loading.load_table


def _slow_load(*arguments, **options):
    time.sleep(SECONDS)
    return _load(*arguments, **options)


if __name__ == "__main__":
    setattr(tables, "load_table", _slow_load)  # noqa: B010 (a name that the module only imports)
    if hasattr(tables, "survey"):
        import parley.tables.survey as survey

        survey.BLOCK_BYTES = 1 << 12
        _rows = survey._csv

        def _slow_rows(path, *arguments):
            blocks = max(1, path.stat().st_size >> 12)
            for batch in _rows(path, *arguments):
                time.sleep(SECONDS / blocks)
                yield batch

        survey._csv = _slow_rows
    run(main, __doc__)
