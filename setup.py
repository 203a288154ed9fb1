"""What pyproject.toml cannot say: the claims, which live beside `src`, are installed as `weft._claims`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("src"), "weft._claims"],
    package_dir={"": "src", "weft._claims": "claims"},
)
