"""Version of the Python sources.

`tbccl/__init__.py` refuses an extension module of another version.
"""

VERSION = "0.1.0"
