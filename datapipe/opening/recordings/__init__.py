"""Sound files to an index: of files, folders, lists, and the layouts of LibriSpeech and Common Voice."""
