package group

import (
	"reflect"
	"unsafe"
)

// hidden returns a field of the room below that no caller needs, of type T.
func hidden[T any](g *Group, field string) *T {
	return (*T)(unsafe.Pointer(reflect.ValueOf(&g.Group).Elem().FieldByName(field).UnsafeAddr()))
}
