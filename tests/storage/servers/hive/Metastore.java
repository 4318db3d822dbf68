import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.shims.ShimLoader;

/** Hive's metastore on a Derby database, with the tables of its locks, which Iceberg's commits need. */
public class Metastore {
    public static void main(String[] arguments) throws Throwable {
        int port = Integer.parseInt(arguments[0]);
        String directory = arguments[1];
        HiveConf conf = new HiveConf();
        String url = "jdbc:derby:" + directory + "/db;create=true";
        System.setProperty(HiveConf.ConfVars.METASTORECONNECTURLKEY.varname, url);
        conf.setVar(HiveConf.ConfVars.METASTORECONNECTURLKEY, url);
        conf.set("hive.metastore.warehouse.dir", "file://" + directory + "/warehouse");
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("datanucleus.connectionPoolingType", "none");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("hive.txn.manager", "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager");
        conf.set("hive.support.concurrency", "true");
        conf.set("hive.async.log.enabled", "false");
        TxnDbUtil.prepDb(conf);
        HiveMetaStore.startMetaStore(port, ShimLoader.getHadoopThriftAuthBridge(), conf);
    }
}
