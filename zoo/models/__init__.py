"""One file per method. A file dropped in here is a method of the zoo; nothing else needs an edit."""
