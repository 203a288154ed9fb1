"""What pyproject.toml cannot say: the claims, which live beside `src`, are installed as `weft._claims`."""

from pathlib import Path

from setuptools import find_packages, setup

families = {f"weft._claims.{path.name}": str(path) for path in Path("claims").iterdir() if any(path.glob("*.py"))}
setup(
    packages=[*find_packages("src"), "weft._claims", *families],
    package_dir={"": "src", "weft._claims": "claims", **families},
)
