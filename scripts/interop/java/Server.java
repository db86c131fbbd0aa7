import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.thrift.TException;
import org.apache.thrift.TMultiplexedProcessor;
import org.apache.thrift.TProcessor;
import org.apache.thrift.server.THsHaServer;
import org.apache.thrift.server.TNonblockingServer;
import org.apache.thrift.server.TServer;
import org.apache.thrift.server.TSimpleServer;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.server.TThreadedSelectorServer;
import org.apache.thrift.transport.TNonblockingServerSocket;
import org.apache.thrift.transport.TServerSocket;
import probe.Probe;
import probe.Refused;
import probe.Tree;

/**
 * Serves the probe service with the Thrift library for Java: Server KIND
 * PORT:TRANSPORT:PROTOCOL...
 */
public final class Server {
  // More than the connections the proxy and a direct client hold at once.
  private static final int WORKERS = 8;

  private static final class Handler implements Probe.Iface {
    private final Map<String, Integer> fires = new ConcurrentHashMap<>();

    public String echo(String text) {
      return text;
    }

    public ByteBuffer echoBinary(ByteBuffer data) {
      return data;
    }

    public Tree echoTree(Tree tree) {
      return tree;
    }

    public void refuse(String why) throws Refused {
      throw new Refused(7, why);
    }

    public void ping() {}

    public void fire(String key) {
      fires.merge(key, 1, Integer::sum);
    }

    public int fired(String key) {
      return fires.getOrDefault(key, 0);
    }
  }

  private static TServer make(String kind, int port, String transport, String protocol)
      throws TException {
    TProcessor processor = new Probe.Processor<>(new Handler());
    if (transport.equals("multiplexed")) {
      TMultiplexedProcessor multiplexed = new TMultiplexedProcessor();
      multiplexed.registerProcessor("Probe", processor);
      processor = multiplexed;
    }
    InetSocketAddress address = new InetSocketAddress("127.0.0.1", port);
    switch (kind) {
      case "simple":
        return new TSimpleServer(
            new TServer.Args(new TServerSocket(address))
                .processor(processor)
                .transportFactory(Form.transports(transport))
                .protocolFactory(Form.protocols(protocol)));
      case "threadpool":
        return new TThreadPoolServer(
            new TThreadPoolServer.Args(new TServerSocket(address))
                .maxWorkerThreads(WORKERS)
                .processor(processor)
                .transportFactory(Form.transports(transport))
                .protocolFactory(Form.protocols(protocol)));
        // The rest frame by themselves.
      case "nonblocking":
        return new TNonblockingServer(
            new TNonblockingServer.Args(new TNonblockingServerSocket(address))
                .processor(processor)
                .protocolFactory(Form.protocols(protocol)));
      case "hsha":
        return new THsHaServer(
            new THsHaServer.Args(new TNonblockingServerSocket(address))
                .processor(processor)
                .protocolFactory(Form.protocols(protocol)));
      case "selector":
        return new TThreadedSelectorServer(
            new TThreadedSelectorServer.Args(new TNonblockingServerSocket(address))
                .processor(processor)
                .protocolFactory(Form.protocols(protocol)));
      default:
        throw new IllegalArgumentException("unknown kind " + kind);
    }
  }

  public static void main(String[] args) throws Exception {
    for (int i = 1; i < args.length; i++) {
      String[] spec = args[i].split(":");
      TServer server = make(args[0], Integer.parseInt(spec[0]), spec[1], spec[2]);
      new Thread(server::serve).start();
    }
  }
}
