"""Command line: `lancetable info | versions | schema | head | inspect | migrate | compact | cleanup | fsck | probe`."""
