package master

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// FuzzRestore reads queues of cuts. What can be read deals all of its shards out.
func FuzzRestore(f *testing.F) {
	for _, text := range []string{
		`{"data":{"name":"d","shards":9,"lease_ns":1000000000,"retries":1,"shuffle":true},"epoch":2,"fence":7,"done":"BQA=","tries":[{"shard":3,"tries":1}],"failed":[{"epoch":2,"shard":4}]}`,
		`{"data":{"shards":2,"lease_ns":1000000000,"dealt":true},"epoch":0}`, `[]`, `{}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		q, err := Restore(text, []int{0, 1})
		if err != nil || q.data.Shards > 1000 {
			return
		}
		left, now := q.left, time.Unix(1000, 0)
		for request := uint64(1); ; request++ {
			g, err := q.Ask(now, int(request%2), request, q.epoch)
			if !assert.NoError(t, err) || g.Verdict == Waiting {
				return
			}
			if g.Verdict == Leased {
				assert.True(t, q.Done(int(request%2), q.epoch, g.Shard, g.Fence))
				left--
			} else if q.left == 0 {
				break
			}
			if !assert.Less(t, request, uint64(5000)) {
				return
			}
		}
		assert.Zero(t, left)
	})
}
