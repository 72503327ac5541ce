// Package collective has the collectives of a process group: the order in which they
// run, and the path of one operation from its descriptor to the steps
// of an algorithm.
//
// A collective is a state machine (step.go): checked, announced, agreed, running, lingering, over. A
// step takes it as far as it goes without waiting, and says what it waits for. On an idle group
// the thread of a synchronous caller takes the steps, and hands the collective to the engine if
// it has to wait for requests, or for long for members on other nodes. Every other collective is
// in the engine from its turn on. Why a member waits no longer (a deadline, an interrupt, a death)
// stands in stop.go, how a collective ends in finish.go, and the errors that say so in
// errors.go.
//
// The collectives of a group run one after another, in the order of submission (turn.go); on one
// node they are announced ahead (ahead.go). Messages between two ranks are outside that order and
// have a room of their own (package messages).
package collective
