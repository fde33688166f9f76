"""The version of the Python sources, which is that of the extension module they were made with."""

VERSION = "0.1.0"
