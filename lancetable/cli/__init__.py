"""The command line: `lancetable info | versions | schema | head | inspect`."""
