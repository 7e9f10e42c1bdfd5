"""Does a vLLM wheel have what the plugin uses? `versions.py WHEEL...`, from sources alone: nothing is installed or imported.

For each wheel: the hooked methods (`engine.missing_hooks`), every name that the plugin imports from vLLM, and the parameters
that it relies on. Exit status 1 if one is missing.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from draftfast_vllm import engine

PLUGIN = Path(engine.__file__).parent
# Function or method, and parameters or attributes of it that the plugin counts on.
USES = {
    "model_executor/kernels/linear/__init__.py": ["def init_nvfp4_linear_kernel", "use_a16"],
    "v1/request.py": ["def append_output_token_ids"],
    "model_executor/layers/linear.py": ["def weight_loader_v2", "output_partition_sizes", "total_num_kv_heads"],
    "model_executor/layers/logits_processor.py": ["soft_cap", "scale"],
    "v1/worker/gpu/spec_decode/speculator.py": ["self.use_local_argmax_reduction", "self.model.get_top_tokens("],
    "v1/spec_decode/llm_base_proposer.py": ["self.use_local_argmax_reduction", "get_top_tokens"],
    "config/vllm.py": ["additional_config"],
}


def imports() -> Iterator[tuple[str, str]]:
    """Module and name of each `from vllm... import ...` of the plugin."""
    for path in sorted(PLUGIN.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "vllm":
                yield from ((node.module, alias.name) for alias in node.names)


def missing_names(package: Path) -> Iterator[str]:
    """Imported names that their module neither defines nor imports, and uses that its source does not show."""
    for module, name in sorted(set(imports())):
        base = package.joinpath(*module.split(".")[1:])
        if (base / f"{name}.py").is_file() or (base / name / "__init__.py").is_file():
            continue
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not path.is_file() or not defines(path, name, package):
            yield f"{module}.{name}"
    for file, words in USES.items():
        source = (package / file).read_text() if (package / file).is_file() else ""
        yield from (f"`{word}` in {file}" for word in words if word not in source)


def defines(path: Path, name: str, package: Path) -> bool:
    """Whether a module's source binds the name, itself or by an import of everything."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return True
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name:
            return True
        if isinstance(node, ast.Constant) and node.value == name:
            return True
        if isinstance(node, ast.ImportFrom):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return True
            if any(alias.name == "*" for alias in node.names):
                below = path.parent if node.level == 1 else package
                inner = below.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                if inner.is_file() and defines(inner, name, package):
                    return True
    return False


def main(wheels: list[str]) -> int:
    """Exit status."""
    found = False
    for wheel in wheels:
        with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(directory, names)
            package = Path(directory) / "vllm"
            missing = [*engine.missing_hooks(package), *missing_names(package)]
        found = found or bool(missing)
        print(f"{Path(wheel).name.split('-cp')[0]}: {', '.join(missing) or 'all there'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
