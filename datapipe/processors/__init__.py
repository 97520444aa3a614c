"""How vision-language models take images: the patches or tiles of pixels, and the tokens, that an image of a size becomes."""
