import com.sun.tools.attach.VirtualMachine;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Prints the MBeans of a running JVM, a line for each attribute: name, attribute.
 * Run: java Mbeans.java PID PATTERN …
 */
public class Mbeans {
    public static void main(String[] args) throws Exception {
        VirtualMachine machine = VirtualMachine.attach(args[0]);
        JMXServiceURL url = new JMXServiceURL(machine.startLocalManagementAgent());
        MBeanServerConnection beans = JMXConnectorFactory.connect(url).getMBeanServerConnection();
        for (int i = 1; i < args.length; i++) {
            for (ObjectName name : beans.queryNames(new ObjectName(args[i]), null)) {
                for (MBeanAttributeInfo attribute : beans.getMBeanInfo(name).getAttributes()) {
                    System.out.println(name + " " + attribute.getName());
                }
            }
        }
    }
}
