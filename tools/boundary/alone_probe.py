"""Run by `alone.py` with `python -I -S`: import the modules of one wheel, beside nothing else of ours.

Without `site`, no `.pth` file is read, so an editable install beside the third-party packages is not seen.
Prints one JSON object: `failed` (module -> error) and `visible` (foreign packages found).
"""

import importlib
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    modules, foreign, *folders = sys.argv[1:]
    prefix = str(Path(sys.executable).parent.parent)
    third_party = sysconfig.get_path("purelib", vars={"base": prefix, "platbase": prefix})
    sys.path[:0] = [*folders, third_party]
    failed = {}
    for name in modules.split(","):
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit too
            failed[name] = f"{type(error).__name__}: {error}"
    visible = [name for name in foreign.split(",") if name and importlib.util.find_spec(name) is not None]
    print(json.dumps({"failed": failed, "visible": visible}))


main()
