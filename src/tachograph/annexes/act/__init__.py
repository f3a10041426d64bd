"""Actions for a site: mails, messages, comments, advice. All are off until configured."""
