"""Methods as text: `and-mask(threshold=0.8)`, the one spelling of the command line, of studies and of nets by name.

Values are Python literals, read by `ast.literal_eval`: nothing is evaluated. Where a method takes another one, that is
spelled likewise: `adversarial-training(attack=pgd(eps=0.2))`.
"""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

from weft.core.catalogue import class_of, find, named, spelled
from weft.core.configured import closest, shown
from weft.core.optimizer import Optimizer
from weft.core.weave import weave

__all__ = ["called", "parse"]

_VALUES = ("attacks", "objectives", "learner", "losses")
_FORM = "a name, or name(setting=value, ...) with numbers, text or tuples as values"


def called(text: str) -> tuple[str, dict[str, ast.expr]]:
    """A name and the settings in brackets after it, read but not evaluated.

    >>> name, settings = called("and-mask(threshold=0.8)")
    >>> name, ast.literal_eval(settings["threshold"])
    ('and-mask', 0.8)
    """
    form = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL) if len(text) <= 2000 else None
    try:
        call = ast.parse(f"_({form.group(2) or ''})", mode="eval").body if form else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        call = None
    if form is None or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError(f"expected {_FORM}, got {shown(text)}")
    settings = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    if len(settings) < len(call.keywords):
        raise ValueError(f"expected {_FORM}, got {shown(text)}")
    return form.group(1), settings


def parse(text: str, room: str) -> Any:
    """A method from its spelling; strategies may be woven with `+`, and `optimizers` is a room too.

    >>> parse("ewc(strength=100)+and-mask", "strategies")
    weave(EWC(strength=100), ANDMask())
    >>> parse("adversarial-training(attack=pgd(eps=0.2))", "strategies")
    AdversarialTraining(attack=PGD(eps=0.2))
    >>> parse("generative-replay(generator=learner(objective=gan(latent=8), steps=300))", "strategies")
    GenerativeReplay(generator=Learner(objective=GAN(latent=8), steps=300))
    >>> parse("classification(net=mlp(dropout=0.5))", "objectives")
    Classification(net='mlp(dropout=0.5)')
    >>> parse("classification(loss=cross-entropy(smoothing=0.1))", "objectives")
    Classification(loss=CrossEntropy(smoothing=0.1))
    >>> parse("sgd(lr=0.1)", "optimizers")
    Optimizer('sgd', lr=0.1)
    """
    if room == "strategies":
        return weave(*(_method(part, room) for part in _woven(text)))
    return _method(text, room)


def _woven(text: str) -> list[str]:
    """Splits at each `+` outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "+" and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    return parts


def _method(text: str, room: str) -> Any:
    name, nodes = called(text)
    try:
        settings = {setting: _value(node) for setting, node in nodes.items()}
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"expected {_FORM}, got {shown(text)}") from error
    if room == "optimizers":
        return Optimizer(name, **settings)
    known = [each for each in inspect.signature(class_of(room, name)).parameters if each != "self"]
    for setting in settings:
        if setting not in known:
            raise closest(setting, known, f"a setting of {name}")
    return find(room, name, **settings)


def _value(node: ast.expr) -> Any:
    """A literal; an attack, an objective, a learner or a loss; or a net, as text that `make_net` reads."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError) as error:
        text = _hyphened(node)
        if not text:
            raise ValueError(f"expected {_FORM}, got {shown(ast.unparse(node))}") from error
        name, _ = called(text)
        if spelled(name) in named("nets"):
            return text
        for room in _VALUES:
            if spelled(name) in named(room):
                return _method(text, room)
        known = [*named("attacks"), *named("losses"), *named("nets")]
        raise closest(name, known, "an attack, a loss or a net") from error


def _hyphened(node: ast.expr) -> str:
    """A name or a call as text, which Python reads as a difference where it has hyphens; else ""."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.right, ast.Call | ast.Name):
        left = _hyphened(node.left)
        return f"{left}-{ast.unparse(node.right)}" if left and "(" not in left else ""
    return ast.unparse(node) if isinstance(node, ast.Call | ast.Name) else ""
