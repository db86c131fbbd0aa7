package loadtest

import (
	"fmt"
	"strings"

	"github.com/apache/thrift/lib/go/thrift"
)

// proxyPrefix begins the text of every exception that forebay makes itself.
const proxyPrefix = "forebay: "

var exceptionNames = map[int32]string{
	thrift.UNKNOWN_APPLICATION_EXCEPTION:  "unknown",
	thrift.UNKNOWN_METHOD:                 "unknown_method",
	thrift.INVALID_MESSAGE_TYPE_EXCEPTION: "invalid_message_type",
	thrift.WRONG_METHOD_NAME:              "wrong_method_name",
	thrift.BAD_SEQUENCE_ID:                "bad_sequence_id",
	thrift.MISSING_RESULT:                 "missing_result",
	thrift.INTERNAL_ERROR:                 "internal_error",
	thrift.PROTOCOL_ERROR:                 "protocol_error",
	thrift.INVALID_TRANSFORM:              "invalid_transform",
	thrift.INVALID_PROTOCOL:               "invalid_protocol",
	thrift.UNSUPPORTED_CLIENT_TYPE:        "unsupported_client_type",
}

// checkException takes an exception that answers the call, id and name being
// right. It is an error, of the proxy's or the server's, after which the
// connection is as good as before; but for the one that was asked for.
func (k *caller) checkException(ex thrift.TApplicationException) *fault {
	made := strings.HasPrefix(ex.Error(), proxyPrefix)
	if k.method.name == unknownName && ex.TypeId() == thrift.UNKNOWN_METHOD && !made {
		return nil
	}
	return k.exception(k.method.name, ex)
}

func (k *caller) exception(method string, ex thrift.TApplicationException) *fault {
	name := exceptionNames[ex.TypeId()]
	if name == "" {
		name = "other"
	}
	return &fault{
		kind:   "exception_" + name,
		text:   fmt.Sprintf("%s: %s: %v", k.c, method, ex),
		usable: true,
	}
}

// isLateWord tells whether a reply is what a proxy has to say about an earlier oneway
// call that was typed as a call, as Go's clients do: it cannot know that nobody waits.
func isLateWord(h head, ex thrift.TApplicationException) bool {
	return h.name == onewayName && ex != nil && strings.HasPrefix(ex.Error(), proxyPrefix)
}
