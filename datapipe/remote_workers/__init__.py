"""Workers on other machines: decode threads of this process ask them for rows, over Arrow Flight."""
