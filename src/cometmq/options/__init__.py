"""Options for configuration files, Spark and command lines: how they are declared, parsed and read from Apache's
files.
"""

from cometmq.options.apache_files import ConfigError as ConfigError
from cometmq.options.apache_files import changed as changed
from cometmq.options.apache_files import default_texts as default_texts
from cometmq.options.apache_files import format_properties as format_properties
from cometmq.options.apache_files import format_value as format_value
from cometmq.options.apache_files import load_file as load_file
from cometmq.options.apache_files import load_options as load_options
from cometmq.options.apache_files import no_effect as no_effect
from cometmq.options.apache_files import parse_value as parse_value
from cometmq.options.declared import ApacheRules as ApacheRules
from cometmq.options.declared import Option as Option
from cometmq.options.declared import camel as camel
from cometmq.options.declared import nearest as nearest
from cometmq.options.declared import option as option
from cometmq.options.declared import options_of as options_of
from cometmq.options.declared import spellings_of as spellings_of
from cometmq.options.forms import OptionError as OptionError
