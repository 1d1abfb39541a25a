"""The C extension; all else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "headrace_accel._kernels",
            ["src/headrace_accel/_kernels.c", "src/headrace_accel/_columns.c"],
            depends=["src/headrace_accel/_varints.h"],
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
        )
    ]
)
