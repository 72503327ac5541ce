// Package comm makes communicators: the members meet by messages, which have a deadline and name who has not come, and make together what
// MPI has no deadline for. A member that dies or stops meanwhile is named, and MPI's call is left to a thread of its own.
package comm
