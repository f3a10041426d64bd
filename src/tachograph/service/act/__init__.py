"""What acts on behalf of a site: mails, messages, comments, advice. All of it is off until it is
configured.
"""
