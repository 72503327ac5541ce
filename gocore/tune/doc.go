// Package tune chooses among several ways to carry out the collectives of a group over nodes, by measuring them where they run.
//
// Every member keeps the same state (Tuner), so all take the same way in the same call, and no message is needed to agree on it:
//
//	call k      all members take the way that the state says, if all call the same, and each measures its time
//	call k + 1  each tells its time of call k in a word of the announcement; the words are combined by bitwise or
//	            all members learn the same time of call k, the shortest of any of them
//
// The shortest is that of the member that came last: the others have waited for it. The or of words gives it because a time is told
// as a bar of bits (told): a bit for each length that it does not exceed.
//
// A class is an operation, whether it sums 16-bit floats, and the power of two of its length. After one call that counts for nothing,
// its ways are tried in turn, rounds times each; one that took over twice the time of the first is tried no more. The first way is what would be
// taken without tuning, so another one has to be faster by more than chance (margin).
//
// A world may have a table of what was measured before (Table): a class that has a row there begins as tuned. The table is the same on
// all members, so they go on taking the same way.
//
// Which ways there are is not known here. They must give the same bits: the choice depends on the clock.
package tune
