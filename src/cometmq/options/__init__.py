"""Options of configuration files, of Spark and of command lines: their forms, their declaration, Apache's files."""

from cometmq.options.apache_files import (
    NO_OPTIONS,
    Change,
    ConfigError,
    changed,
    default_texts,
    format_properties,
    format_value,
    load_file,
    load_options,
    no_effect,
    parse_value,
)
from cometmq.options.declared import ApacheRules, Option, camel, nearest, option, options_of, spellings_of
from cometmq.options.forms import OptionError

__all__ = [
    "NO_OPTIONS",
    "ApacheRules",
    "Change",
    "ConfigError",
    "Option",
    "OptionError",
    "camel",
    "changed",
    "default_texts",
    "format_properties",
    "format_value",
    "load_file",
    "load_options",
    "nearest",
    "no_effect",
    "option",
    "options_of",
    "parse_value",
    "spellings_of",
]
