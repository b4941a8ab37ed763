"""Pages: self-contained HTML files that open offline, made of what runs and streams leave behind."""
