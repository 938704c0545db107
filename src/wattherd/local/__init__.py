"""One machine: jobs as supervised process trees that outlive the one who ordered them."""
