"""What is published names no folder of the machine that built it: the check of `.ci/package` finds one wherever it is."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / ".ci/folders"
FOLDER = "/builds/some one/draftfast"


def checked(place):
    ran = subprocess.run([sys.executable, CHECK, place, "/builds/cargo", FOLDER], capture_output=True, text=True)
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    "spelt", [FOLDER, "path+file:///builds/some%20one/draftfast#draftfast@0.1.0", "/builds/cargo/x"]
)
def test_a_folder_is_found_in_a_binary_and_in_a_wheel(tmp_path, spelt):
    (tmp_path / "dist/man").mkdir(parents=True)
    binary = tmp_path / "dist/man/draftfast"
    binary.write_bytes(b"\x7fELF\0\xff")
    assert checked(tmp_path / "dist")[0] == 0
    binary.write_bytes(b"\x7fELF\0\xff" + spelt.encode() + b"\xff")
    code, said = checked(tmp_path / "dist")
    assert code == 1 and "man/draftfast names /builds/" in said
    binary.unlink()
    with zipfile.ZipFile(tmp_path / "dist/x.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("x.dist-info/sboms/x.json", spelt * 100)
    code, said = checked(tmp_path / "dist")
    assert code == 1 and "x.whl: x.dist-info/sboms/x.json names /builds/" in said


def test_a_folder_without_files_is_no_success(tmp_path):
    assert checked(tmp_path)[0] == 1
