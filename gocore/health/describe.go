package health

import (
	"fmt"
	"math"
	"strings"

	"github.com/paddlempi/paddlempi/gocore/arrive"
	"github.com/paddlempi/paddlempi/gocore/op"
)

// Describe formats a signature like the call that it stands for.
func Describe(s arrive.Signature) string {
	code, dtype, reduce := op.Code(s[0]&0xff), op.DType(s[0]>>8&0xff), op.ReduceOp(s[0]>>16&0xff)
	text := code.String()
	if code == op.HaloExchange {
		return fmt.Sprintf("%s(%s, %s, detail %08x)", text, dtype, widths(s[1]), uint32(s[2])^uint32(s[2]>>32))
	}
	if dtype == 0 {
		return text
	}
	text += fmt.Sprintf("(%s[%d]", dtype, s[1])
	detail := ""
	if s[1] == 0 && s[2] != 0 {
		text = fmt.Sprintf("%s(%s, parts %08x", code, dtype, uint32(s[2]))
	} else if s[2] != 0 {
		detail = fmt.Sprintf(", detail %08x", uint32(s[2])^uint32(s[2]>>32))
	}
	if reduce == op.PremulSum && code.Trait().Recv != op.Many && s[1] != 0 {
		text += fmt.Sprintf(", PREMUL_SUM(%v)", math.Float64frombits(s[2]))
	} else if text += detail; reduce != 0 {
		text += ", " + reduce.String()
	}
	if root := int(s[0]>>32) - 1; root >= 0 {
		text += fmt.Sprintf(", root %d of the group", root)
	}
	return text + ")"
}

// widths formats the widths of a halo's border, six bits for each of up to 4 dimensions before the inner part and behind
// it. 63 stands for more, too. Dimensions of a width of 0 at the end are left out.
func widths(packed uint64) string {
	var list []string
	for ; packed != 0; packed >>= 12 {
		before, behind := packed&63, packed>>6&63
		if before == behind {
			list = append(list, fmt.Sprint(before))
		} else {
			list = append(list, fmt.Sprintf("%d+%d", before, behind))
		}
	}
	return "width " + strings.Join(list, ", ")
}
