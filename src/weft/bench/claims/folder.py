"""A folder of claims: listed by reading its files, loaded by running one, and the results kept of them."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.bench.claims.claim import TEXTS, Claim
from weft.bench.claims.parts import claim_digests
from weft.core.files import read_json
from weft.report.digests import standing

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["FORMAT", "Listed", "claims_folder", "last", "listed", "load", "since"]

FORMAT = 1  # of result.json


@dataclass(frozen=True)
class Listed:
    """A claim as its file states it."""

    name: str
    path: Path
    title: str
    statement: str
    reference: str
    tolerance: str


def claims_folder() -> Path:
    """weft's own claims: in the source tree, or those packed with an installed weft."""
    home = Path(__file__).parents[2]
    tree = home.parents[1] / "claims"
    return tree if tree.is_dir() and (home.parents[1] / "pyproject.toml").exists() else home / "_claims"


def listed(folder: Path | None = None) -> list[Listed]:
    """The claims of a folder and of its families, the folders within, by name; their files are read, not run."""
    folder = claims_folder() if folder is None else Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder of claims, got {folder}, which is not there; give --folder")
    paths: dict[str, Path] = {}
    for path in sorted([*folder.glob("*.py"), *folder.glob("*/*.py")]):
        if path.name.startswith("_"):
            continue
        if path.stem in paths:
            raise ValueError(f"expected one claim of each name, got {paths[path.stem]} and {path}; rename one of them")
        paths[path.stem] = path
    return [_read(paths[name]) for name in sorted(paths)]


def _read(path: Path) -> Listed:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"expected a claim in {path}, got no Python: {error}") from error
    for part in tree.body:
        if isinstance(part, ast.ClassDef) and any(_ends(base, "Claim") for base in part.bases):
            texts = dict.fromkeys(TEXTS, "")
            for line in part.body:
                target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
                value = getattr(line, "value", None)
                if isinstance(target, ast.Name) and target.id in texts and isinstance(value, ast.Constant):
                    texts[target.id] = str(value.value)
            return Listed(name=path.stem, path=path, **texts)
    raise ValueError(f"expected a subclass of weft.bench.claims.Claim in {path}, got none")


def _ends(base: ast.expr, name: str) -> bool:
    return getattr(base, "id", None) == name or getattr(base, "attr", None) == name


def load(path: Path) -> Claim:
    """The claim of a file. This runs the file, which may import others of its folder that begin with `_`."""
    name = f"weft_claim_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"expected the file of a claim, got {path}")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"expected a claim in {path}, got {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
        for other in [n for n in sys.modules if n.startswith("_") and (Path(folder) / f"{n}.py").is_file()]:
            del sys.modules[other]  # another folder may have its own of that name
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
    own = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Claim) and v.__module__ == name]
    if len(own) != 1:
        raise ValueError(f"expected one subclass of Claim in {path}, got {len(own)}; one file, one claim")
    claim: Claim = own[0]()
    claim.check()
    return claim


def last(name: str, out: Path) -> Json | None:
    """The last result of a claim under `out`, or None."""
    path = out / "claims" / name / "result.json"
    try:
        result = read_json(path)
    except (OSError, ValueError):
        return None
    right = isinstance(result, dict) and result.get("kind") == "claim" and result.get("format") == FORMAT
    return result if right else None


def since(claim: Listed, out: Path) -> str:
    """What there is to say against a claim's last result: changed by hand, or made by other code; else nothing."""
    result = last(claim.name, out)
    file = {"claim": claim_digests(claim.path, {})["claim"]}
    return standing(result, out / "claims" / claim.name, file) if result else ""
