#ifndef PMPI_SLACK_H
#define PMPI_SLACK_H

/* pmpi_slack_restore puts the timer slack of the thread that loaded the library back to what it
 * was. It does nothing on other threads. Call it when Go's runtime has started. Returns nothing. */
void pmpi_slack_restore(void);

#endif
