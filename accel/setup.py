"""The C extension; all else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "headrace_accel._kernels",
            [f"src/headrace_accel/{name}.c" for name in ("_kernels", "_columns", "_rows")],
            depends=["src/headrace_accel/_varints.h", "src/headrace_accel/_writer.h"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
        )
    ]
)
