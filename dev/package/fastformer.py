"""fastformer.c's programs and its model for PyTorch.

    from fastformer import FastformerForCausalLM, FastformerConfig

needs torch and transformers (pip install 'fastformer[torch]'), and registers the class with transformers' Auto
classes, so that AutoModelForCausalLM.from_pretrained(RUN) loads a run. The command is `fastformer`, or
`python -m fastformer`.
"""

import os
import sys

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "fastformer")
CLASSES = ("FastformerForCausalLM", "FastformerConfig")
__all__ = [*CLASSES, "FastformerLMConfig"]


def __getattr__(name):
    """Imports PyTorch only when the classes are used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import modeling_fastformer as modeling
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError as error:
        raise ImportError(f"fastformer.{name} needs {error.name}: pip install 'fastformer[torch]'") from None
    config, model = modeling.FastformerConfig, modeling.FastformerForCausalLM
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    # FastformerLMConfig is its name in the published package.
    globals().update(FastformerForCausalLM=model, FastformerConfig=config, FastformerLMConfig=config)
    return globals()[name]


def main():
    """Replaces this process by the program, under the name by which it was called."""
    name = os.path.basename(sys.argv[0])
    sys.argv[0] = "fastformer" if name == "__main__.py" else name
    try:
        os.execv(PROGRAMS, sys.argv)
    except OSError as error:
        sys.exit(f"error: {PROGRAMS}: {error.strerror}; it is for Linux on the processor that the package names")
