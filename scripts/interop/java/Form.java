import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.protocol.TCompactProtocol;
import org.apache.thrift.protocol.TProtocolFactory;
import org.apache.thrift.transport.TTransportFactory;
import org.apache.thrift.transport.layered.TFramedTransport;

/** The ways to put a Thrift message on a connection, for client and server. */
final class Form {
  private Form() {}

  static TTransportFactory transports(String name) {
    switch (name) {
      case "framed":
      case "multiplexed":
        return new TFramedTransport.Factory();
      case "buffered":
        return new TTransportFactory(); // the library's sockets are buffered themselves
      default:
        throw new IllegalArgumentException("unknown transport " + name);
    }
  }

  static TProtocolFactory protocols(String name) {
    switch (name) {
      case "binary":
        return new TBinaryProtocol.Factory(true, true);
      case "compact":
        return new TCompactProtocol.Factory();
      case "old":
        return new TBinaryProtocol.Factory(false, false);
      default:
        throw new IllegalArgumentException("unknown protocol " + name);
    }
  }
}
