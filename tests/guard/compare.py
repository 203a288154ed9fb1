"""Whether two dumps of trained parameters agree, bit for bit, or to a tolerance that is named.

python tests/guard/compare.py BEFORE.safetensors AFTER.safetensors [--within 1e-9]
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors import safe_open


def read(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["stopped"])  # noqa: SIM118


def bits(tensor):
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def differences(before, after, within=0.0):
    """Names of what differs, with how much; a training that was not there before has nothing to differ from."""
    (old, old_texts), (new, new_texts) = before, after
    fresh = new_texts.keys() - old_texts.keys()
    new = {name: tensor for name, tensor in new.items() if name.partition(":")[0] not in fresh}
    new_texts = {name: text for name, text in new_texts.items() if name not in fresh}
    odd = dict.fromkeys(old.keys() ^ new.keys() | old_texts.keys() ^ new_texts.keys(), "only in one of them")
    odd |= {name: "stopped otherwise" for name in old_texts if new_texts.get(name) != old_texts[name]}
    for name in old.keys() & new.keys():
        a, b = old[name], new[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            odd[name] = f"{a.dtype} {tuple(a.shape)}, {b.dtype} {tuple(b.shape)}"
        elif within == 0.0 or not a.is_floating_point():
            if not torch.equal(bits(a), bits(b)):
                odd[name] = f"by {(a.double() - b.double()).abs().max():.3g}"
        elif not torch.allclose(a, b, rtol=within, atol=within, equal_nan=True):
            odd[name] = f"by {(a.double() - b.double()).abs().max():.3g}"
    return odd


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--within", type=float, default=0.0)
    asked = parser.parse_args()
    before, after = read(asked.before), read(asked.after)
    odd = differences(before, after, asked.within)
    for name in sorted(odd)[:40]:
        print(f"{name}: {odd[name]}")
    same = "bit for bit" if asked.within == 0.0 else f"within {asked.within:g}"
    print(
        f"{len(before[0])} tensors of {len(before[1])} trainings: "
        + (f"{len(odd)} differ" if odd else f"the same, {same}")
        + f"; {len(after[1].keys() - before[1].keys())} trainings are new"
    )
    raise SystemExit(bool(odd))


if __name__ == "__main__":
    main()
