"""The walk of a fit through weft's own files: how many, how many functions, and who calls whom back.

    python benchmarks/walk.py
    python benchmarks/walk.py --pairs

`Classifier(strategy=ANDMask(), replicas=4).fit(X, y, environment=e)` is traced with `sys.setprofile`. An edge goes
from the file of the nearest caller that is weft's to the file of the function called; a mutual pair is two files (or
two rooms) with an edge in both directions: the walk goes down and comes back up by a call, not by returning. What is
handed over to be called (a closure, a hook of torch's) is no way back up by name, and is counted apart.
"""

import argparse
import inspect
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np

import weft
from weft import Classifier
from weft.strategies import ANDMask

ROOT = Path(weft.__file__).parent


def traced(run):
    """Functions and edges between files while `run()` goes on, by name and handed over."""
    functions, named, handed = set(), Counter(), Counter()

    def own(frame):
        """A function of weft's; the bodies of modules and classes, which run when they are imported, are no walk."""
        return frame.f_code.co_filename.startswith(str(ROOT)) and frame.f_code.co_flags & inspect.CO_OPTIMIZED

    def note(frame, event, argument):
        if event != "call" or not own(frame):
            return
        code, caller = frame.f_code, frame.f_back
        edges = handed if code.co_flags & inspect.CO_NESTED else named
        functions.add((code.co_filename, code.co_firstlineno, code.co_name))
        while caller is not None and not own(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            edges[caller.f_code.co_filename, code.co_filename] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return functions, named, handed


def room(path):
    parts = Path(path).relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else "."


def between_rooms(edges):
    rooms = Counter()
    for (caller, called), count in edges.items():
        if room(caller) != room(called):
            rooms[room(caller), room(called)] += count
    return rooms


def mutual(edges):
    """Pairs with an edge in both directions."""
    return sorted({tuple(sorted(edge)) for edge in edges if edge[::-1] in edges})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="name the mutual pairs")
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(120, 5)), np.arange(120) % 3
    y = (X[:, 0] > 0).astype(int)
    fitted = Classifier(strategy=ANDMask(), replicas=4, epochs=2, random_state=0)
    functions, named, handed = traced(lambda: fitted.fit(X, y, environment=site))
    edges = named + handed
    figures = {
        "files": len({path for path, _, _ in functions}),
        "functions": len(functions),
        "edges": len(edges),
        "mutual pairs of files": len(mutual(edges)),
        "mutual pairs of files by name": len(mutual(named)),
        "mutual pairs of rooms": len(mutual(between_rooms(edges))),
        "mutual pairs of rooms by name": len(mutual(between_rooms(named))),
    }
    print(json.dumps(figures))
    if asked.pairs:
        for a, b in mutual(edges):
            how = "by name" if (a, b) in mutual(named) else "handed over"
            print("files:", Path(a).relative_to(ROOT), Path(b).relative_to(ROOT), edges[a, b], edges[b, a], how)
        for a, b in mutual(between_rooms(edges)):
            print("rooms:", a, b, "by name" if (a, b) in mutual(between_rooms(named)) else "handed over")


if __name__ == "__main__":
    main()
