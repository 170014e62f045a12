"""The door to TensorFlow: what comes with it, and what only when it is asked for."""

import subprocess
import sys

CODE = """
import sys
{before}
from gpt2ln.runtime import tf
print('keras' in sys.modules, tf.keras.layers.Layer.__name__, 'keras' in sys.modules)
"""


def run(before: str = "") -> list[str]:
    ran = subprocess.run([sys.executable, "-c", CODE.format(before=before)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_keras_comes_when_it_is_asked_for():
    assert run() == ["False", "Layer", "True"]


def test_keras_that_is_there_stays():
    assert run("import keras") == ["True", "Layer", "True"]
