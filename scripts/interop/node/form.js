// The ways to put a Thrift message on a connection, for client and server.
"use strict";

const thrift = require("thrift");
const THeaderProtocol = require("thrift/lib/nodejs/lib/thrift/header_protocol");
const { SubprotocolId } = require("thrift/lib/nodejs/lib/thrift/header_transport");

// headerTransport makes the transport class under a header protocol, with two
// faults of the library's mended. Its generated clients flush the transport,
// past the protocol that would have written the header, and so send none. And it
// reads a header before it has come in whole, so that it depends on the segments
// of the stream whether a message is understood.
function headerTransport(protocol, isServer) {
  class HeaderTransport extends thrift.TBufferedTransport {
    static receiver(callback, seqid) {
      const receive = super.receiver(callback, seqid);
      let data = Buffer.alloc(0);
      return (more) => {
        data = Buffer.concat([data, more]);
        while (data.length >= 4 && data.length >= 4 + data.readInt32BE()) {
          const frame = data.subarray(0, 4 + data.readInt32BE());
          data = data.subarray(frame.length);
          receive(frame);
        }
      };
    }
    constructor(...args) {
      super(...args);
      this.setProtocolId(SubprotocolId[protocol.toUpperCase()]);
    }
    flush() {
      if (!isServer) this.writeHeaders();
      return super.flush();
    }
  }
  return HeaderTransport;
}

// options returns the transport and protocol classes by name.
exports.options = function (transport, protocol, isServer) {
  if (transport === "header") {
    return { transport: headerTransport(protocol, isServer), protocol: THeaderProtocol };
  }
  const transports = {
    buffered: thrift.TBufferedTransport,
    framed: thrift.TFramedTransport,
    multiplexed: thrift.TFramedTransport,
  };
  const protocols = { binary: thrift.TBinaryProtocol, compact: thrift.TCompactProtocol };
  return { transport: transports[transport], protocol: protocols[protocol] };
};
