"""A table's file with given content."""

import pytest


@pytest.fixture
def write(tmp_path):
    def make(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make
